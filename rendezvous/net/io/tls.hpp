#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// The first byte of a TLS connection: the record in which a client says hello.
[[nodiscard]] constexpr bool begins_tls(unsigned char first_byte) { return first_byte == 0x16; }

/// What a port without token and certificate answers to a TLS client, so that it can tell which side lacks what: alert
/// 40, handshake_failure.
inline constexpr std::string_view no_tls_here{"\x15\x03\x03\x00\x02\x02\x28", 7};

/// TLS 1.3 from a job's token alone, and for those who have none from a certificate.
///
/// The token is an external pre-shared key: HMAC-SHA-256(token, "torchup tls"), identity `torchup`, with
/// TLS_AES_128_GCM_SHA256 and a key exchange by X25519, so that who learns the token later reads nothing of today. It
/// proves both sides. There are no tickets and no early data. A side with a token talks to nobody who has not proven
/// it; a server with a certificate too talks to both, and says which it is (TlsStream::proved).
class TlsContext {
 public:
  /// Errors: errc::refused without OpenSSL 3.
  [[nodiscard]] static Result<std::shared_ptr<const TlsContext>> client(std::string_view token);

  struct Server {
    std::string token = {};  ///< empty: none
    std::string cert_file = {};
    std::string key_file = {};  ///< both or none, PEM
  };
  /// Errors: errc::refused without OpenSSL 3; errc::bad_value for files that cannot be read, or a key that is another
  /// certificate's.
  [[nodiscard]] static Result<std::shared_ptr<const TlsContext>> server(const Server& settings);

  struct Impl;
  explicit TlsContext(std::unique_ptr<Impl> impl);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  [[nodiscard]] const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// One side of a TLS connection, without its socket: bytes in, bytes out.
///
/// 14 KiB for a connection that is at rest [checked].
class TlsStream {
 public:
  enum class State : std::uint8_t {
    handshake,
    open,
    closed,  ///< the peer has said that it says no more
    failed,  ///< see failure()
  };
  /// What a failed handshake tells of the other side.
  enum class Failure : std::uint8_t {
    none,
    other_language,  ///< what came is no TLS
    none_there,      ///< it has no token, or none was offered to one that wants it
    wrong_token,     ///< it has another
    broken,          ///< anything else; what came later cannot be what was sent
  };

  explicit TlsStream(std::shared_ptr<const TlsContext> context);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  /// Bytes that have come. What they say is appended to `plain`; to_send() may have something then.
  State receive(std::string_view bytes, std::string& plain);
  /// Before the handshake's end it is kept, 1 MiB at most (beyond that the stream fails), and sent then.
  void send(std::string_view plain);
  /// Says that nothing more is said.
  void close();
  /// What the socket is to send, which it takes; with it handshakes begin.
  [[nodiscard]] std::string to_send();

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] Failure failure() const { return failure_; }
  [[nodiscard]] const std::string& why() const { return why_; }  ///< OpenSSL's words
  /// The peer has proven the token. False while the handshake lasts.
  [[nodiscard]] bool proved() const;

 private:
  void shake_hands();
  void read_plain(std::string& plain);
  void fail_by_error();

  std::shared_ptr<const TlsContext> context_;
  struct Session;
  std::unique_ptr<Session> session_;
  State state_ = State::handshake;
  Failure failure_ = Failure::none;
  std::string why_;
  std::string unsent_;  ///< said before the handshake's end
};

}  // namespace torchup
