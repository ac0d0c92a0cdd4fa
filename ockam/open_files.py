"""How many files this process may have open, and how many connections fit into that. It opens none itself."""

from __future__ import annotations

import resource

import structlog

OPEN_FILES_RESERVE = 64
"""Left for the database, its readers, logs and what else a node opens."""

logger = structlog.get_logger(__name__)


def connections_that_fit(connections_max: int) -> int:
    """`connections_max`, or as many as this process may open where that is less; at least 1.

    Raises the soft limit of open files to the hard one first, since connections above the soft limit would be accepted
    by the kernel and then answered by nobody.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            logger.warning("open_files_not_raised", soft=soft, hard=hard, reason=str(error))
        else:
            logger.info("open_files_raised", before=soft, now=hard)
            soft = hard
    if soft == resource.RLIM_INFINITY or connections_max <= soft - OPEN_FILES_RESERVE:
        return connections_max
    fit = max(1, soft - OPEN_FILES_RESERVE)
    logger.warning("connections_bounded", wanted=connections_max, most=fit, open_files=soft)
    return fit
