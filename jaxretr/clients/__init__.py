"""Clients of the service, and classes for LangChain, LlamaIndex and Haystack: over HTTP or in the same process.

Importing this package needs none of them; each module needs its own framework.
"""
