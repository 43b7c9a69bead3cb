#include "launcher/os/io/helper.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/readable_pipe.hpp>
#include <boost/system/system_error.hpp>
#include <csignal>
#include <optional>

#include "launcher/os/io/boost_process.hpp"
#include "launcher/os/io/fresh_process.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {
namespace {

namespace bp = boost::process::v2;
using HelperProcess = bp::basic_process<asio::io_context::executor_type>;

/// How long a killed helper may take to go.
constexpr Duration helper_kill_limit = std::chrono::seconds{1};

/// One helper, from its start to its end, on a loop that nobody else uses.
class Asking {
 public:
  explicit Asking(const Helper& helper) : helper_{helper} {}

  Result<std::string> run() {
    if (auto started = start(); !started) return started.error();
    try {
      spawn(loop_, "ask a helper", ask());
      loop_.run();
    } catch (...) {  // the system gives no descriptor, or no memory: nobody is left who would end it
      ::kill(-child_->id(), SIGKILL);
      throw;
    }
    return std::move(answer_);
  }

 private:
  /// Our copy of the pipe's end for writing is gone when this returns: only the helper holds one.
  Result<> start() {
    bp::process_stdio streams{nullptr, out_, nullptr};
    boost::system::error_code error;
    bp::posix::default_launcher launcher;
    child_.emplace(
        launcher(loop_.get_executor(), error, helper_.executable, helper_.arguments, streams, FreshProcess{}));
    if (error) return Error{error, fmt::format("no helper {}", helper_.executable)};
    return {};
  }

  Task<> ask() {
    answer_ = co_await within(helper_.limit, read_answer());
    if (helper_.farewell > Duration{0}) {
      ::kill(child_->id(), SIGTERM);
      static_cast<void>(co_await within(helper_.farewell, end()));
    }
    ::kill(-child_->id(), SIGKILL);
    const auto ended = co_await within(helper_kill_limit, end());
    if (!ended) static_cast<void>(child_->detach());
  }

  Task<Result<std::string>> read_answer() {
    std::string text;
    auto buffer = asio::dynamic_buffer(text, helper_.answer_bytes_max);
    if (helper_.cancelled < 0) {
      co_await asio::async_read(out_, buffer, Token{});  // its end, or as much as we take
      co_return text;
    }
    using namespace asio::experimental::awaitable_operators;
    const int copy = ::fcntl(helper_.cancelled, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) co_return system_error("a way to cancel a helper");
    asio::posix::stream_descriptor cancelled{loop_, copy};
    auto first = co_await (asio::async_read(out_, buffer, Token{}) ||
                           cancelled.async_wait(asio::posix::stream_descriptor::wait_read, Token{}));
    if (first.index() == 0) co_return text;
    co_return Error{make_error_code(boost::system::errc::operation_canceled), "nobody wants the answer any more"};
  }

  Task<Result<>> end() {
    co_await child_->async_wait(Token{});
    co_return Result<>{};
  }

  const Helper& helper_;
  asio::io_context loop_{1};
  asio::readable_pipe out_{loop_};
  std::optional<HelperProcess> child_;
  Result<std::string> answer_ = std::string{};
};

}  // namespace

Result<std::string> ask_helper(const Helper& helper) {
  try {
    return Asking{helper}.run();
  } catch (const boost::system::system_error& error) {
    return Error{error.code(), fmt::format("no helper {}", helper.executable)};
  }
}

}  // namespace torchup
