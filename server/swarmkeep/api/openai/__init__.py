"""OpenAI's face: chat completions, responses and conversations, translated into the commands and the log of `/v1`."""
