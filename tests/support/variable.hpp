#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace torchup::test {

/// An environment variable that has another value, or none, for the life of this.
class Variable {
 public:
  Variable(std::string name, const char* value) : name_{std::move(name)} {
    if (const char* const before = std::getenv(name_.c_str())) before_ = before;
    set(value);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }

  /// Null: there is no such variable.
  void set(const char* value) const { value ? ::setenv(name_.c_str(), value, 1) : ::unsetenv(name_.c_str()); }

 private:
  const std::string name_;
  std::optional<std::string> before_;
};

}  // namespace torchup::test
