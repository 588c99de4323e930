"""What the packages `fast` share: native code, its cache, and C++ headers."""
