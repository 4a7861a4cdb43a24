"""1 SPEC: what users write, as pydantic models. `schema` makes CRDs of them, `resolve` reads them for core."""
