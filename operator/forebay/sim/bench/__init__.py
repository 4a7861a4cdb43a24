"""`forebay bench`: every judge on every workload, held against the clairvoyant bound."""
