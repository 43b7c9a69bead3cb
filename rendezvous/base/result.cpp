#include "rendezvous/base/result.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <stdexcept>

namespace torchup {
namespace {

class Category final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "torchup"; }
  std::string message(int code) const override {
    switch (static_cast<errc>(code)) {
      case errc::bad_value:
        return "bad value";
      case errc::missing_value:
        return "missing value";
      case errc::bad_frame:
        return "not our language";
      case errc::limit_exceeded:
        return "limit exceeded";
      case errc::refused:
        return "refused";
      case errc::wrong_version:
        return "versions do not fit";
    }
    return "unknown torchup error";
  }
};

const Category& category() {
  static const Category instance;
  return instance;
}

}  // namespace

boost::system::error_code make_error_code(errc code) { return {static_cast<int>(code), category()}; }

std::string Error::message() const {
  if (code.category() == category()) return context.empty() ? code.message() : context;
  return context.empty() ? code.message() : context + ": " + code.message();
}

Error system_error(int code, std::string context) {
  return Error{{code, boost::system::system_category()}, std::move(context)};
}

Error system_error(std::string context) { return system_error(errno, std::move(context)); }

void throw_exception_from_error(const Error& error, const boost::source_location& where) {
  throw std::logic_error(
      fmt::format("{}:{}: value taken from a failed result: {}", where.file_name(), where.line(), error.message()));
}

}  // namespace torchup
