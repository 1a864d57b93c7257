"""From a question to an answer: what is not stated is completed, once for every door."""
