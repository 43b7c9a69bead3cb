#include <cstdio>
#include <map>
#include <string_view>

#include "tests/worker_runtime/test_program.hpp"

namespace {

auto& programs() {
  static std::map<std::string_view, int (*)(int, char**)> programs;
  return programs;
}

}  // namespace

TestProgram::TestProgram(const char* name, int (*run)(int, char**)) { programs().emplace(name, run); }

int main(int argc, char** argv) {
  const std::string_view path = argv[0];
  const auto program = programs().find(path.substr(path.rfind('/') + 1));
  if (program != programs().end()) return program->second(argc, argv);
  std::fprintf(stderr, "%s: start it by the name of one of its programs\n", argv[0]);
  return 2;
}
