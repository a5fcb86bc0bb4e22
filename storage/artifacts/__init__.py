"""Tables, weights and what they were made from -> folders of Parquet and safetensors."""
