"""A Dagster asset: a table of everything in a node, brought up to date every 15 minutes.

Load it with `dagster dev -f examples/dagster_export.py`; the workers need the extra `export`. Or materialize the
asset once:

STREAM_NODE_ADDRESS=127.0.0.1:4000 python examples/dagster_export.py
"""

import os
from pathlib import Path

import dagster

from spark_export.exporter.job import ExportSettings
from spark_export.exporter.scheduled import TRY_AGAIN, exit_code, run_export
from spark_export.tables.errors import ExportError


@dagster.asset(pool="stream_node_export")
def lake() -> dagster.MaterializeResult:
    settings = ExportSettings(
        folder=Path(os.environ.get("LAKE", "lake")),
        node=os.environ.get("STREAM_NODE_ADDRESS", "127.0.0.1:4000"),
    )
    try:
        outcome = run_export(settings)
    except ExportError as error:
        if exit_code(error) == TRY_AGAIN:
            raise dagster.RetryRequested(max_retries=3, seconds_to_wait=60) from error
        raise dagster.Failure(str(error), allow_retries=False) from error
    return dagster.MaterializeResult(metadata={"run": outcome.run_id or 0, "rows": outcome.rows, "lost": outcome.lost})


definitions = dagster.Definitions(
    assets=[lake],
    schedules=[dagster.ScheduleDefinition(name="every_15_minutes", target=[lake], cron_schedule="*/15 * * * *")],
)

if __name__ == "__main__":
    result = dagster.materialize([lake])
    print({name: value.value for name, value in result.asset_materializations_for_node("lake")[0].metadata.items()})
