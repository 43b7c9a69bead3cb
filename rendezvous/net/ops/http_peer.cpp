// Who is at the other end of a connection.
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/net/io/address.hpp"
#include "rendezvous/net/io/node_identity.hpp"
#include "rendezvous/net/ops/http_server.hpp"

namespace torchup {
namespace {

/// As /etc/passwd names him: other directories of users may take long to answer, or be in the network.
std::string user_name(uid_t uid) {
  std::ifstream file{"/etc/passwd"};
  const std::string wanted = std::to_string(uid);
  for (std::string line; std::getline(file, line);) {  // name:password:uid:
    const std::size_t name_end = line.find(':');
    const std::size_t begin = name_end == std::string::npos ? name_end : line.find(':', name_end + 1);
    if (begin != std::string::npos && line.substr(begin + 1, line.find(':', begin + 1) - begin - 1) == wanted) {
      return line.substr(0, name_end);
    }
  }
  return "";
}

}  // namespace

std::vector<std::string> own_names() {
  std::string name = own_host_name();
  std::vector<std::string> names{name.substr(0, name.find('.'))};
  if (names.front() != name) names.push_back(std::move(name));
  return names;
}

std::optional<OpsPeer> peer_at(int socket) {
  int family = 0;
  socklen_t size = sizeof family;
  if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &size) != 0) return std::nullopt;
  OpsPeer peer;
  if (family == AF_UNIX) {
    ucred user{};
    size = sizeof user;
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &user, &size) != 0) return std::nullopt;
    peer.user = OpsPeer::User{user.uid, user_name(user.uid)};
    return peer;
  }
  peer.address = peer_address(socket);
  if (peer.address.empty()) return std::nullopt;
  peer.by_loopback = is_loopback(peer.address);
  return peer;
}

}  // namespace torchup
