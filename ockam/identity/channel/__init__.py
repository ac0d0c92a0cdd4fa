"""The secure channel that Ockam nodes speak: mutual proof of identities, then encryption from end to end."""
