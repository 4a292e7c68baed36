// Asio, compiled once: the daemon's files then include only its declarations.
#include <asio/impl/src.hpp>
