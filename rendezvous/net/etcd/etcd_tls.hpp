#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// Whom etcd's members are trusted by, and what we show them. Files are PEM.
struct EtcdTlsFiles {
  std::string ca_file = {};    ///< empty: this machine's own
  std::string cert_file = {};  ///< ours, with its key; both or none
  std::string key_file = {};
  friend bool operator==(const EtcdTlsFiles&, const EtcdTlsFiles&) = default;
};

/// TLS towards etcd, as a client that knows the member's name: its certificate must be signed by one that is trusted,
/// and be that name's, or that address's. OpenSSL 3 is loaded when the first of these is made.
class EtcdTls {
 public:
  /// Errors: errc::refused without OpenSSL 3; errc::bad_value for files that cannot be used.
  [[nodiscard]] static Result<std::shared_ptr<const EtcdTls>> open(const EtcdTlsFiles& files);

  struct Library;
  struct Context;
  explicit EtcdTls(std::unique_ptr<Context> context);
  ~EtcdTls();
  EtcdTls(const EtcdTls&) = delete;
  EtcdTls& operator=(const EtcdTls&) = delete;
  [[nodiscard]] const Context& context() const { return *context_; }

 private:
  std::unique_ptr<Context> context_;
};

/// One connection's, without its socket: bytes in, bytes out.
class EtcdTlsStream {
 public:
  EtcdTlsStream(std::shared_ptr<const EtcdTls> tls, const std::string& host);
  ~EtcdTlsStream();
  EtcdTlsStream(const EtcdTlsStream&) = delete;
  EtcdTlsStream& operator=(const EtcdTlsStream&) = delete;

  /// Bytes that have come; what they say is appended to `plain`.
  void receive(std::string_view bytes, std::string& plain);
  /// After the handshake.
  void send(std::string_view plain);
  /// For the socket, which takes it; with it the handshake begins.
  [[nodiscard]] std::string to_send();

  [[nodiscard]] bool open() const { return open_; }
  /// What is wrong, in words for people; empty: nothing.
  [[nodiscard]] const std::string& failure() const { return failure_; }
  /// The member's certificate is not trusted, or it wants one of ours: trying again does not mend that.
  [[nodiscard]] bool refused() const { return refused_; }

 private:
  void go_on();
  void fail();

  std::shared_ptr<const EtcdTls> tls_;
  struct Session;
  std::unique_ptr<Session> session_;
  bool open_ = false;
  bool refused_ = false;
  std::string failure_;
};

}  // namespace torchup
