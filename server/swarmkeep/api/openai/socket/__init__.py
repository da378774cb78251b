"""Responses over one WebSocket."""
