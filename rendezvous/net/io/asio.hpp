#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

/// Coroutines on one loop, with errors as values. The token is chosen here, once, for everybody.
namespace torchup {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

using Token = asio::as_tuple_t<asio::use_awaitable_t<>>;
using Socket = Token::as_default_on_t<tcp::socket>;
using Acceptor = Token::as_default_on_t<tcp::acceptor>;
using Timer = Token::as_default_on_t<asio::steady_timer>;
template <class T = void>
using Task = asio::awaitable<T>;

/// Starts `task` on `loop`. An exception that escapes it is a bug: it leaves loop.run() and reaches main, with the
/// coroutine's name in front of what it says.
inline void spawn(asio::io_context& loop, std::string name, Task<void> task) {
  asio::co_spawn(loop, std::move(task), [name = std::move(name)](std::exception_ptr escaped) {
    if (!escaped) return;
    try {
      std::rethrow_exception(escaped);
    } catch (...) {
      std::throw_with_nested(std::runtime_error{name + ": an exception escaped the coroutine"});
    }
  });
}

/// Runs `operation`; after `limit`, cancels it and returns timed_out: half a frame may be lost, so close the stream.
template <class T>
Task<Result<T>> within(Duration limit, Task<Result<T>> operation) {
  using namespace asio::experimental::awaitable_operators;
  Timer timer{co_await asio::this_coro::executor, limit};
  auto first = co_await (std::move(operation) || timer.async_wait());
  if (first.index() == 0) co_return std::get<0>(std::move(first));
  co_return Error{make_error_code(boost::system::errc::timed_out), "no answer in time"};
}

}  // namespace torchup
