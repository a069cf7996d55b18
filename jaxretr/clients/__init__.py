"""Clients of the service, and the classes that LangChain, LlamaIndex and Haystack take: by HTTP or in the same process.

Importing this package needs none of them; each module needs its own framework.
"""
