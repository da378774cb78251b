"""The wheels as they are installed: in environments of their own, outside of the checkout."""
