"""SPEC: what users write. Pydantic models, generated into crds/."""
