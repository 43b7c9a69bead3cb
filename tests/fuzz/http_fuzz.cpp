// Requests on the port that all share: whatever comes, each connection ends, and what is answered is HTTP.
//
// Input: the bytes of one connection, over a pair of connected sockets; its peer is another machine's, so a token
// decides.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <string>
#include <string_view>

#include "rendezvous/net/ops/http_server.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

void send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) break;  // it was closed, or what one connection may say at once is said
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  ::shutdown(socket, SHUT_WR);
}

std::string receive_all(int socket) {
  std::string all;
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t count = ::recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count <= 0) return all;
    all.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  int ends[2];
  fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  UniqueFd ours{ends[0]};
  {
    boost::asio::io_context loop{1};
    HttpServer server{loop, [](const OpsCall& call, HttpServer::Reply reply) {
                        fuzz::require(call.caller.right == Right::control || !takes_body(call));
                        reply(OpsAnswer{.body = call.caller.right == Right::none ? "open\n" : "secret\n"});
                      }};
    const auto door = std::make_shared<HttpDoor>();
    door->access.control_token = "t";
    server.serve(UniqueFd{ends[1]}, door, {.address = "192.0.2.7"});
    send_all(ours.get(), {reinterpret_cast<const char*>(data), size});
    loop.run();  // ends at the end of what was sent, not at the request's limit
  }
  const std::string answer = receive_all(ours.get());
  fuzz::require(answer.empty() || answer.starts_with("HTTP/1."));
  const std::string_view sent{reinterpret_cast<const char*>(data), size};
  std::string lower{sent};
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const bool proved = lower.find("bearer") != std::string::npos;
  fuzz::require(proved || answer.find("secret") == std::string::npos);
  return 0;
}
