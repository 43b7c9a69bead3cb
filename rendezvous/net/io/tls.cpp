#include "rendezvous/net/io/tls.hpp"

#include <array>
#include <utility>

#include "rendezvous/net/io/openssl.hpp"
#include "rendezvous/net/io/token.hpp"

namespace torchup {
namespace {

constexpr std::string_view psk_identity = "torchup";
constexpr std::string_view psk_text = "torchup tls";
constexpr std::size_t unsent_plain_max = std::size_t{1} << 20;
constexpr std::array<unsigned char, 2> aes_128_gcm_sha256{0x13, 0x01};
/// What OpenSSL adds to the number of an alert that has come.
constexpr int alert_reason_base = 1000;
constexpr int alert_handshake_failure = 40, alert_illegal_parameter = 47, alert_decrypt_error = 51;

}  // namespace

struct TlsContext::Impl {
  explicit Impl(const OpenSsl& functions) : ssl{functions} {}
  ~Impl() { ssl.SSL_CTX_free(context); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Null where OpenSSL has no memory left.
  [[nodiscard]] SSL_SESSION* session_of_token(SSL* connection) const {
    SSL_SESSION* const session = ssl.SSL_SESSION_new();
    const SSL_CIPHER* const cipher = ssl.SSL_CIPHER_find(connection, aes_128_gcm_sha256.data());
    if (session && cipher && ssl.SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1 &&
        ssl.SSL_SESSION_set_cipher(session, cipher) == 1 &&
        ssl.SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
      return session;
    }
    ssl.SSL_SESSION_free(session);
    return nullptr;
  }

  const OpenSsl& ssl;
  SSL_CTX* context = nullptr;
  bool is_server = false;
  bool has_token = false;
  Mac key{};
};

namespace {

const TlsContext::Impl& impl_of(const OpenSsl& ssl, SSL* connection) {
  return *static_cast<const TlsContext::Impl*>(ssl.SSL_CTX_get_ex_data(ssl.SSL_get_SSL_CTX(connection), 0));
}

// OpenSSL calls these back; it was loaded to call them.

const OpenSsl& openssl() { return **OpenSsl::load(); }

int use_token(SSL* connection, const EVP_MD*, const unsigned char** identity, std::size_t* length,
              SSL_SESSION** session) {
  *session = impl_of(openssl(), connection).session_of_token(connection);
  *identity = reinterpret_cast<const unsigned char*>(psk_identity.data());
  *length = psk_identity.size();
  return *session ? 1 : 0;
}

int find_token(SSL* connection, const unsigned char* identity, std::size_t length, SSL_SESSION** session) {
  const std::string_view asked{reinterpret_cast<const char*>(identity), length};
  *session = asked == psk_identity ? impl_of(openssl(), connection).session_of_token(connection) : nullptr;
  return 1;
}

std::string last_words(const OpenSsl& ssl) {
  const char* const reason = ssl.ERR_reason_error_string(ssl.ERR_peek_error());
  return reason ? reason : "no reason is told";
}

Result<std::unique_ptr<TlsContext::Impl>> context_of(bool is_server, std::string_view token) {
  const auto functions = OpenSsl::load();
  if (!functions) return functions.error();
  const OpenSsl& ssl = **functions;
  auto impl = std::make_unique<TlsContext::Impl>(ssl);
  impl->is_server = is_server;
  impl->has_token = !token.empty();
  impl->context = ssl.SSL_CTX_new(ssl.TLS_method());
  SSL_CTX* const context = impl->context;
  if (!context) return fail(errc::refused, "OpenSSL gives no context: " + last_words(ssl));
  ssl.SSL_CTX_set_ex_data(context, 0, impl.get());
  ssl.SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  ssl.SSL_CTX_set_num_tickets(context, 0);
  ssl.SSL_CTX_ctrl(context, SSL_CTRL_MODE, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, nullptr);
  std::array<char, 7> group{"X25519"};
  const bool set = ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, nullptr) == 1 &&
                   ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MAX_PROTO_VERSION, TLS1_3_VERSION, nullptr) == 1;
  if (!set) return fail(errc::refused, "OpenSSL has no TLS 1.3: " + last_words(ssl));
  if (token.empty()) return impl;
  impl->key = hmac_sha256(token, psk_text);
  // A browser, which has no token, may choose what it likes.
  const bool strict = is_server ? true : ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_GROUPS_LIST, 0, group.data()) == 1;
  if (!strict || ssl.SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1) {
    return fail(errc::refused, "OpenSSL lacks X25519 or TLS_AES_128_GCM_SHA256: " + last_words(ssl));
  }
  if (is_server) {
    ssl.SSL_CTX_set_psk_find_session_callback(context, find_token);
  } else {
    ssl.SSL_CTX_set_psk_use_session_callback(context, use_token);
    // A certificate proves no token, whoever has signed it: none is trusted.
    ssl.SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  }
  return impl;
}

}  // namespace

TlsContext::TlsContext(std::unique_ptr<Impl> impl) : impl_{std::move(impl)} {}
TlsContext::~TlsContext() = default;

Result<std::shared_ptr<const TlsContext>> TlsContext::client(std::string_view token) {
  auto impl = context_of(false, token);
  if (!impl) return impl.error();
  return std::make_shared<const TlsContext>(std::move(*impl));
}

Result<std::shared_ptr<const TlsContext>> TlsContext::server(const Server& settings) {
  auto impl = context_of(true, settings.token);
  if (!impl) return impl.error();
  const OpenSsl& ssl = (*impl)->ssl;
  SSL_CTX* const context = (*impl)->context;
  if (!settings.cert_file.empty()) {
    ssl.ERR_clear_error();
    // Who comes with a certificate's client may want another cipher.
    if (ssl.SSL_CTX_set_ciphersuites(
            context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") != 1) {
      return fail(errc::refused, "OpenSSL lacks the ciphers of TLS 1.3: " + last_words(ssl));
    }
    if (ssl.SSL_CTX_use_certificate_chain_file(context, settings.cert_file.c_str()) != 1) {
      return fail(errc::bad_value, "certificate " + settings.cert_file + ": " + last_words(ssl));
    }
    if (ssl.SSL_CTX_use_PrivateKey_file(context, settings.key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
        ssl.SSL_CTX_check_private_key(context) != 1) {
      return fail(errc::bad_value,
                  "key " + settings.key_file + " of certificate " + settings.cert_file + ": " + last_words(ssl));
    }
    ssl.ERR_clear_error();
  }
  return std::make_shared<const TlsContext>(std::move(*impl));
}

struct TlsStream::Session {
  explicit Session(const TlsContext::Impl& impl)
      : ssl{impl.ssl}, connection{ssl.SSL_new(impl.context)}, in{ssl.BIO_new(ssl.BIO_s_mem())}, out{ssl.BIO_new(
                                                                                                    ssl.BIO_s_mem())} {
    if (!connection || !in || !out) throw std::bad_alloc{};  // OpenSSL has no memory left
    ssl.SSL_set_bio(connection, in, out);
    impl.is_server ? ssl.SSL_set_accept_state(connection) : ssl.SSL_set_connect_state(connection);
  }
  ~Session() { ssl.SSL_free(connection); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const OpenSsl& ssl;
  SSL* connection;
  BIO* in;
  BIO* out;
};

TlsStream::TlsStream(std::shared_ptr<const TlsContext> context)
    : context_{std::move(context)}, session_{std::make_unique<Session>(context_->impl())} {
  if (!context_->impl().is_server) shake_hands();
}
TlsStream::~TlsStream() = default;

TlsStream::State TlsStream::receive(std::string_view bytes, std::string& plain) {
  if (state_ == State::failed || state_ == State::closed) return state_;
  session_->ssl.BIO_write(session_->in, bytes.data(), static_cast<int>(bytes.size()));
  if (state_ == State::handshake) shake_hands();
  if (state_ == State::open) read_plain(plain);
  return state_;
}

void TlsStream::shake_hands() {
  const OpenSsl& ssl = session_->ssl;
  ssl.ERR_clear_error();
  const int done = ssl.SSL_do_handshake(session_->connection);
  if (done != 1) {
    const int error = ssl.SSL_get_error(session_->connection, done);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) fail_by_error();
    return;
  }
  state_ = State::open;
  // The peer's certificate was trusted by nobody: it has come here by the token alone. Said once more, for it is the
  // one thing on which all rests.
  const TlsContext::Impl& impl = context_->impl();
  if (impl.has_token && !impl.is_server && !proved()) {
    state_ = State::failed;
    failure_ = Failure::none_there;
    return;
  }
  send(std::exchange(unsent_, {}));
}

void TlsStream::read_plain(std::string& plain) {
  const OpenSsl& ssl = session_->ssl;
  static thread_local std::array<char, std::size_t{16} << 10> buffer;
  for (;;) {
    ssl.ERR_clear_error();
    const int count = ssl.SSL_read(session_->connection, buffer.data(), static_cast<int>(buffer.size()));
    if (count > 0) {
      plain.append(buffer.data(), static_cast<std::size_t>(count));
      continue;
    }
    const int error = ssl.SSL_get_error(session_->connection, count);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return;
    if (error == SSL_ERROR_ZERO_RETURN) {
      state_ = State::closed;
      return;
    }
    return fail_by_error();
  }
}

void TlsStream::send(std::string_view plain) {
  if (state_ == State::failed || plain.empty()) return;
  if (state_ == State::handshake) {
    unsent_ += plain;
    if (unsent_.size() <= unsent_plain_max) return;
    state_ = State::failed;
    failure_ = Failure::broken;
    why_ = "more was said than may wait for the handshake's end";
    return;
  }
  const OpenSsl& ssl = session_->ssl;
  ssl.ERR_clear_error();
  // Into memory it takes all.
  const int count = ssl.SSL_write(session_->connection, plain.data(), static_cast<int>(plain.size()));
  if (count != static_cast<int>(plain.size())) fail_by_error();
}

void TlsStream::close() {
  if (state_ != State::open && state_ != State::closed) return;
  session_->ssl.ERR_clear_error();
  session_->ssl.SSL_shutdown(session_->connection);
}

std::string TlsStream::to_send() {
  std::string bytes(session_->ssl.BIO_ctrl_pending(session_->out), '\0');
  if (bytes.empty()) return bytes;
  const int count = session_->ssl.BIO_read(session_->out, bytes.data(), static_cast<int>(bytes.size()));
  bytes.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return bytes;
}

bool TlsStream::proved() const {
  return context_->impl().has_token && state_ != State::handshake && state_ != State::failed &&
         session_->ssl.SSL_session_reused(session_->connection) == 1;
}

void TlsStream::fail_by_error() {
  const OpenSsl& ssl = session_->ssl;
  const bool in_handshake = state_ == State::handshake;
  state_ = State::failed;
  failure_ = Failure::broken;
  const unsigned long error = ssl.ERR_peek_error();
  why_ = last_words(ssl);
  ssl.ERR_clear_error();
  if (!in_handshake) return;
  const int reason = ERR_GET_REASON(error);
  switch (reason) {
    case alert_reason_base + alert_handshake_failure:
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_CERTIFICATE_SET:
      failure_ = Failure::none_there;
      break;
    case alert_reason_base + alert_illegal_parameter:
    case alert_reason_base + alert_decrypt_error:
    case SSL_R_BINDER_DOES_NOT_VERIFY:
      failure_ = Failure::wrong_token;
      break;
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_BAD_RECORD_TYPE:
    case SSL_R_RECORD_LENGTH_MISMATCH:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_ENCRYPTED_LENGTH_TOO_LONG:
      failure_ = Failure::other_language;
      break;
    default:
      break;
  }
}

}  // namespace torchup
