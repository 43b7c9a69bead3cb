// Stands for a program that was built with another torch: CMakeLists.txt makes version_check.cpp believe so. It must
// not get as far as main.
#include <cstdio>

int main() { std::puts("main has begun"); }
