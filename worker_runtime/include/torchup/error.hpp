#pragma once

#include <stdexcept>
#include <string>

namespace torchup {

// The launcher's libraries have a value type of the same name. The inline namespace keeps the two apart for the linker;
// no file may include both headers.
inline namespace runtime {

/// What every function of the worker runtime throws when it cannot do what was asked: what failed, on what, and what
/// can be done about it. LibTorch's own c10::Error passes through unchanged where LibTorch says it well enough.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error{message} {}
};

}  // namespace runtime
}  // namespace torchup
