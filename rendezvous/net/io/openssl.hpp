#pragma once

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// What we call of OpenSSL 3, loaded when the first connection is to be encrypted: who has no token and no certificate
/// neither loads it nor needs it.
struct OpenSsl {
#define TORCHUP_OPENSSL_FUNCTIONS(X)       \
  X(TLS_method)                            \
  X(SSL_CTX_new)                           \
  X(SSL_CTX_free)                          \
  X(SSL_CTX_ctrl)                          \
  X(SSL_CTX_set_options)                   \
  X(SSL_CTX_set_ciphersuites)              \
  X(SSL_CTX_set_num_tickets)               \
  X(SSL_CTX_set_verify)                    \
  X(SSL_CTX_set_ex_data)                   \
  X(SSL_CTX_get_ex_data)                   \
  X(SSL_CTX_set_psk_use_session_callback)  \
  X(SSL_CTX_set_psk_find_session_callback) \
  X(SSL_CTX_use_certificate_chain_file)    \
  X(SSL_CTX_use_PrivateKey_file)           \
  X(SSL_CTX_check_private_key)             \
  X(SSL_get_SSL_CTX)                       \
  X(SSL_new)                               \
  X(SSL_free)                              \
  X(SSL_set_bio)                           \
  X(SSL_set_connect_state)                 \
  X(SSL_set_accept_state)                  \
  X(SSL_do_handshake)                      \
  X(SSL_read)                              \
  X(SSL_write)                             \
  X(SSL_shutdown)                          \
  X(SSL_get_error)                         \
  X(SSL_session_reused)                    \
  X(SSL_SESSION_new)                       \
  X(SSL_SESSION_free)                      \
  X(SSL_SESSION_set1_master_key)           \
  X(SSL_SESSION_set_cipher)                \
  X(SSL_SESSION_set_protocol_version)      \
  X(SSL_CIPHER_find)                       \
  X(BIO_new)                               \
  X(BIO_s_mem)                             \
  X(BIO_read)                              \
  X(BIO_write)                             \
  X(BIO_ctrl_pending)                      \
  X(ERR_peek_error)                        \
  X(ERR_clear_error)                       \
  X(ERR_reason_error_string)

#define TORCHUP_DECLARE(name) decltype(&::name) name = nullptr;
  TORCHUP_OPENSSL_FUNCTIONS(TORCHUP_DECLARE)
#undef TORCHUP_DECLARE

  /// Loads it, the first time. Errors: errc::refused where there is none, or it lacks something.
  [[nodiscard]] static Result<const OpenSsl*> load();
};

}  // namespace torchup
