"""The data path: Envoy's endpoint picker around routing."""
