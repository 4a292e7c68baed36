// The bodies of toml++, compiled once per build instead of in every file that reads a configuration. The distributions'
// own library is shared, which neither the client library nor a bundle may depend on.
#include <toml++/toml.h>
