"""GGUF models through llama.cpp. The only package that touches `llama_cpp` symbols."""
