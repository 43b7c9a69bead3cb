#pragma once

#include <boost/assert/source_location.hpp>
#include <boost/system/error_code.hpp>
#include <boost/system/result.hpp>
#include <string>
#include <utility>

namespace torchup {

/// What the caller may branch on when no code of the operating system says it.
enum class errc {
  bad_value = 1,   ///< a flag, variable or field holds something that cannot be used
  missing_value,   ///< a flag, variable or field is needed and absent
  bad_frame,       ///< bytes of a peer that are not our language
  limit_exceeded,  ///< a named limit was met
  refused,         ///< the other side answered and said no
  wrong_version,   ///< two parts that do not fit together
};
boost::system::error_code make_error_code(errc code);

struct Error {
  boost::system::error_code code;  ///< what the caller branches on: our errc, or the system's
  std::string context;             ///< what a person reads: what failed, on what, and what can be done

  /// "<context>: <text of the code>"; for our own codes the context alone, which says it better.
  [[nodiscard]] std::string message() const;
};

/// Called by boost::system::result when somebody takes the value of a failed Result: a broken invariant.
[[noreturn]] void throw_exception_from_error(const Error& error, const boost::source_location& where);

/// A value, or the Error that kept it from being made.
template <class T = void>
struct [[nodiscard]] Result : boost::system::result<T, Error> {
  using boost::system::result<T, Error>::result;
};

/// Error with one of our codes.
inline Error fail(errc code, std::string context) { return Error{make_error_code(code), std::move(context)}; }

/// Error of a system call that left `code` in errno; without one, errno as it is now.
Error system_error(int code, std::string context);
Error system_error(std::string context);

}  // namespace torchup

template <>
struct boost::system::is_error_code_enum<torchup::errc> : std::true_type {};
