"""The tools an AI agent needs to spend within its policy, over the Model Context Protocol."""
