#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>

#include "rendezvous/base/types.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

/// Peers of a server that runs on a loop of the same thread.
namespace torchup::test {

inline UniqueFd connect_to(Port port) {
  UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port.value());
  REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  return socket;
}

inline void send_all(const UniqueFd& socket, const std::string& bytes) {
  REQUIRE(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

/// Runs `loop` until `condition` holds; fails after a time that no busy machine takes, sanitizers included.
template <class Condition>
void run_until(boost::asio::io_context& loop, Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{80};
  loop.restart();
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    loop.run_for(std::chrono::milliseconds{1});
    loop.restart();
  }
}

inline std::string received(boost::asio::io_context& loop, const UniqueFd& socket, std::size_t size) {
  std::string bytes;
  run_until(loop, [&] {
    char buffer[65536];
    if (const ssize_t got = ::recv(socket.get(), buffer, sizeof buffer, 0); got > 0)
      bytes.append(buffer, static_cast<std::size_t>(got));
    return bytes.size() >= size;
  });
  return bytes;
}

inline bool at_end(const UniqueFd& socket) {
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, 0) == 0;
}

}  // namespace torchup::test
