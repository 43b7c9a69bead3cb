#include "rendezvous/net/etcd/etcd_tls.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <boost/asio/ip/address.hpp>
#include <utility>

namespace torchup {

#define TORCHUP_ETCD_SSL(X)              \
  X(TLS_client_method)                   \
  X(SSL_CTX_new)                         \
  X(SSL_CTX_free)                        \
  X(SSL_CTX_ctrl)                        \
  X(SSL_CTX_set_verify)                  \
  X(SSL_CTX_load_verify_locations)       \
  X(SSL_CTX_set_default_verify_paths)    \
  X(SSL_CTX_use_certificate_chain_file)  \
  X(SSL_CTX_use_PrivateKey_file)         \
  X(SSL_CTX_check_private_key)           \
  X(SSL_new)                             \
  X(SSL_free)                            \
  X(SSL_ctrl)                            \
  X(SSL_set_bio)                         \
  X(SSL_set1_host)                       \
  X(SSL_get0_param)                      \
  X(SSL_set_connect_state)               \
  X(SSL_do_handshake)                    \
  X(SSL_read)                            \
  X(SSL_write)                           \
  X(SSL_get_error)                       \
  X(SSL_get_verify_result)               \
  X(X509_VERIFY_PARAM_set1_ip_asc)       \
  X(X509_verify_cert_error_string)       \
  X(BIO_new)                             \
  X(BIO_s_mem)                           \
  X(BIO_read)                            \
  X(BIO_write)                           \
  X(BIO_ctrl_pending)                    \
  X(ERR_peek_last_error)                 \
  X(ERR_clear_error)                     \
  X(ERR_reason_error_string)

struct EtcdTls::Library {
#define TORCHUP_DECLARE_SSL(name) decltype(&::name) name = nullptr;
  TORCHUP_ETCD_SSL(TORCHUP_DECLARE_SSL)
#undef TORCHUP_DECLARE_SSL

  static Result<Library> look_up() {
    void* const file = ::dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) return torchup::fail(errc::refused, std::string{"https to etcd needs OpenSSL 3: "} + ::dlerror());
    Library library;
    std::string missing;
#define TORCHUP_LOOK_UP_SSL(name)                                                \
  library.name = reinterpret_cast<decltype(&::name)>(::dlsym(file, #name)); \
  if (library.name == nullptr) missing = #name;
    TORCHUP_ETCD_SSL(TORCHUP_LOOK_UP_SSL)
#undef TORCHUP_LOOK_UP_SSL
    if (!missing.empty()) return torchup::fail(errc::refused, "libssl.so.3 lacks " + missing);
    return library;
  }
  static Result<const Library*> load() {
    static const Result<Library> library = look_up();
    if (!library) return library.error();
    return &*library;
  }

  [[nodiscard]] std::string last_words() const {
    const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
    return reason != nullptr ? reason : "no reason is told";
  }
};

struct EtcdTls::Context {
  Context(const Library& the_library, SSL_CTX* made) : library{the_library}, context{made} {}
  ~Context() { library.SSL_CTX_free(context); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  const Library& library;
  SSL_CTX* context;
};

EtcdTls::EtcdTls(std::unique_ptr<Context> context) : context_{std::move(context)} {}
EtcdTls::~EtcdTls() = default;

Result<std::shared_ptr<const EtcdTls>> EtcdTls::open(const EtcdTlsFiles& files) {
  const auto loaded = Library::load();
  if (!loaded) return loaded.error();
  const Library& ssl = **loaded;
  ssl.ERR_clear_error();
  auto made = std::make_unique<Context>(ssl, ssl.SSL_CTX_new(ssl.TLS_client_method()));
  SSL_CTX* const context = made->context;
  if (context == nullptr) return fail(errc::refused, "OpenSSL gives no context: " + ssl.last_words());
  const auto bad = [&](const char* what, const std::string& file) {
    return fail(errc::bad_value, fmt::format("{} {} cannot be used: {}", what, file, ssl.last_words()));
  };
  ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, nullptr);
  ssl.SSL_CTX_ctrl(context, SSL_CTRL_MODE, SSL_MODE_RELEASE_BUFFERS, nullptr);
  ssl.SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  if (files.ca_file.empty()) {
    ssl.SSL_CTX_set_default_verify_paths(context);
  } else if (ssl.SSL_CTX_load_verify_locations(context, files.ca_file.c_str(), nullptr) != 1) {
    return bad("cacert", files.ca_file);
  }
  if (!files.cert_file.empty()) {
    if (ssl.SSL_CTX_use_certificate_chain_file(context, files.cert_file.c_str()) != 1) return bad("cert", files.cert_file);
    if (ssl.SSL_CTX_use_PrivateKey_file(context, files.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
      return bad("key", files.key_file);
    }
    if (ssl.SSL_CTX_check_private_key(context) != 1) return bad("key of another certificate:", files.key_file);
  }
  return std::make_shared<const EtcdTls>(std::move(made));
}

struct EtcdTlsStream::Session {
  explicit Session(const EtcdTls::Library& library) : ssl{library} {}
  ~Session() { ssl.SSL_free(connection); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  const EtcdTls::Library& ssl;
  SSL* connection = nullptr;
  BIO* in = nullptr;  ///< both the connection's
  BIO* out = nullptr;
};

EtcdTlsStream::EtcdTlsStream(std::shared_ptr<const EtcdTls> tls, const std::string& host)
    : tls_{std::move(tls)}, session_{std::make_unique<Session>(tls_->context().library)} {
  const EtcdTls::Library& ssl = session_->ssl;
  ssl.ERR_clear_error();
  session_->connection = ssl.SSL_new(tls_->context().context);
  session_->in = ssl.BIO_new(ssl.BIO_s_mem());
  session_->out = ssl.BIO_new(ssl.BIO_s_mem());
  ssl.SSL_set_bio(session_->connection, session_->in, session_->out);
  boost::system::error_code no_address;
  boost::asio::ip::make_address(host, no_address);
  if (no_address) {
    std::string name = host;
    ssl.SSL_set1_host(session_->connection, host.c_str());
    ssl.SSL_ctrl(session_->connection, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, name.data());
  } else {
    ssl.X509_VERIFY_PARAM_set1_ip_asc(ssl.SSL_get0_param(session_->connection), host.c_str());
  }
  ssl.SSL_set_connect_state(session_->connection);
  go_on();
}

EtcdTlsStream::~EtcdTlsStream() = default;

void EtcdTlsStream::receive(std::string_view bytes, std::string& plain) {
  const EtcdTls::Library& ssl = session_->ssl;
  if (!failure_.empty()) return;
  ssl.ERR_clear_error();
  ssl.BIO_write(session_->in, bytes.data(), static_cast<int>(bytes.size()));
  if (!open_) go_on();
  if (!open_) return;
  char part[16384];
  for (;;) {
    const int count = ssl.SSL_read(session_->connection, part, sizeof part);
    if (count > 0) {
      plain.append(part, static_cast<std::size_t>(count));
      continue;
    }
    const int error = ssl.SSL_get_error(session_->connection, count);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_ZERO_RETURN) fail();
    return;
  }
}

void EtcdTlsStream::send(std::string_view plain) {
  if (!open_ || !failure_.empty()) return;
  session_->ssl.ERR_clear_error();
  if (session_->ssl.SSL_write(session_->connection, plain.data(), static_cast<int>(plain.size())) <= 0) fail();
}

std::string EtcdTlsStream::to_send() {
  const EtcdTls::Library& ssl = session_->ssl;
  std::string bytes(ssl.BIO_ctrl_pending(session_->out), '\0');
  if (!bytes.empty()) ssl.BIO_read(session_->out, bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

void EtcdTlsStream::go_on() {
  const int done = session_->ssl.SSL_do_handshake(session_->connection);
  if (done == 1) {
    open_ = true;
  } else if (session_->ssl.SSL_get_error(session_->connection, done) != SSL_ERROR_WANT_READ) {
    fail();
  }
}

void EtcdTlsStream::fail() {
  const EtcdTls::Library& ssl = session_->ssl;
  const long trusted = ssl.SSL_get_verify_result(session_->connection);
  const std::string words = ssl.last_words();
  if (trusted != X509_V_OK) {
    refused_ = true;
    failure_ = fmt::format("its certificate is not trusted: {}", ssl.X509_verify_cert_error_string(trusted));
  } else if (words.find("wrong version number") != std::string::npos) {
    failure_ = "speaks no TLS: leave protocol=https out";
  } else {
    refused_ = words.find("certificate") != std::string::npos;  // an alert: ours is wanted, or is not trusted
    failure_ = "TLS: " + words;
  }
}

}  // namespace torchup
