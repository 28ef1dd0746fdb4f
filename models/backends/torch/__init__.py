"""The reference backend: plain torch, any device, any float dtype."""
