"""The stream service: durable, ordered streams over routed messages."""

import companion as _companion  # noqa: F401 - first, so that compiled modules are found
