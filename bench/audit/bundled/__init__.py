"""The bundled models and data sets against committed descriptions: what they are, and what they compute."""
