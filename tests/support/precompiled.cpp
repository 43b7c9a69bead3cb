// CMake makes a precompiled header only for a target that has a source that uses it, which catch_main.cpp cannot.
