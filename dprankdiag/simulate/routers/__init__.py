"""Who chooses the rank of a request, by the ledger it believes: SGLang's controller, vLLM's front ends, gateways."""
