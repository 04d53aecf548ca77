//! What an image's configuration and its own files make of a container, and what they must not.
