#include "rendezvous/net/io/lookup.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "rendezvous/net/io/background.hpp"

namespace torchup {

namespace asio = boost::asio;

struct Lookup::Shared : std::enable_shared_from_this<Shared> {
  std::mutex mutex;
  asio::io_context* loop = nullptr;  ///< null when nobody wants the answer any more
  std::function<void(Result<Addresses>)> done;

  void tell(Result<Addresses> answer);
};

namespace {

Result<Lookup::Addresses> resolve(const std::string& host, Port port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port.value()).c_str(), &hints, &list); error != 0) {
    return fail(errc::refused, "the name " + host + " is not found: " + gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner{list, &freeaddrinfo};
  Lookup::Addresses addresses;
  for (const addrinfo* entry = list; entry; entry = entry->ai_next) {
    asio::ip::tcp::endpoint endpoint;
    if (entry->ai_addrlen > endpoint.capacity()) continue;
    std::memcpy(endpoint.data(), entry->ai_addr, entry->ai_addrlen);
    endpoint.resize(entry->ai_addrlen);
    addresses.push_back(endpoint);
  }
  if (addresses.empty()) return fail(errc::refused, "the name " + host + " has no address");
  return addresses;
}

}  // namespace

void Lookup::Shared::tell(Result<Addresses> answer) {
  const std::lock_guard lock{mutex};
  if (!loop) return;
  asio::post(*loop, [shared = shared_from_this(), answer = std::move(answer)]() mutable {
    if (shared->loop) std::exchange(shared->done, {})(std::move(answer));
  });
}

Lookup::Lookup(asio::io_context& loop, const std::string& host, Port port, std::function<void(Result<Addresses>)> done)
    : shared_{std::make_shared<Shared>()} {
  shared_->loop = &loop;
  shared_->done = std::move(done);
  const auto thread = in_background([shared = shared_, host, port] { shared->tell(resolve(host, port)); });
  if (!thread.valid()) shared_->tell(system_error(EAGAIN, "there is no thread for the look-up of " + host));
}

Lookup::~Lookup() {
  const std::lock_guard lock{shared_->mutex};
  shared_->loop = nullptr;
}

}  // namespace torchup
