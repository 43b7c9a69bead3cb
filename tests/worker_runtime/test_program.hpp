#pragma once

/// A program that a test's script starts. They are one executable, each in its file and namespace, and started by a
/// link of its name: a program alone costs half a minute of compilation, nearly all of it LibTorch's templates.
struct TestProgram {
  /// `run` is called as main is, in a process that is started by `name`. A program registers itself by a constant.
  TestProgram(const char* name, int (*run)(int, char**));
};
