"""An Airflow DAG that exports everything new from a node, every 15 minutes.

Put the file into Airflow's folder of DAGs; the workers need the extra `export`. Or run the task once, without a
scheduler:

STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/airflow_export.py
"""

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException

from spark_export.exporter.job import ExportSettings
from spark_export.exporter.scheduled import TRY_AGAIN, exit_code, run_export
from spark_export.tables.errors import ExportError


# One run at a time: a second exporter of the same table would write what this one writes, and give up.
@dag(dag_id="stream_node_export", schedule="*/15 * * * *", catchup=False, max_active_runs=1)
def export_dag() -> None:
    @task(retries=3, retry_delay=timedelta(minutes=1))
    def export() -> dict[str, int | None]:
        settings = ExportSettings(
            folder=Path(os.environ.get("LAKE", "lake")),
            node=os.environ.get("STREAM_NODE_ADDRESS", "127.0.0.1:4000"),
        )
        try:
            outcome = run_export(settings)
        except ExportError as error:
            if exit_code(error) != TRY_AGAIN:
                # A retry would fail in the same way.
                raise AirflowFailException(str(error)) from error
            raise
        return {"run": outcome.run_id, "rows": outcome.rows, "lost": outcome.lost}

    export()


exporting = export_dag()

if __name__ == "__main__":
    print(exporting.get_task("export").execute({}))
