#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

/// One look-up of a name, on a thread of its own: a name server that does not answer holds nobody else up, not even the
/// end of this process. Destroying it lets go of the thread; `done` is not called then.
class Lookup {
 public:
  using Addresses = std::vector<boost::asio::ip::tcp::endpoint>;
  /// `done` is called from the loop, with one address at least or with what the resolver said.
  Lookup(boost::asio::io_context& loop, const std::string& host, Port port,
         std::function<void(Result<Addresses>)> done);
  Lookup(const Lookup&) = delete;
  Lookup& operator=(const Lookup&) = delete;
  ~Lookup();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace torchup
