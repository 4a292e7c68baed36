#include "client/cli/settings.h"

#include "client/config.h"

namespace gpupool::cli {

Result<Settings> client_settings(const std::string& server) {
    auto config = client::load_config();
    if (!config) {
        return config.error();
    }
    Settings settings{server.empty() ? config->server : server, config->token};
    if (settings.server.empty()) {
        settings.server = "127.0.0.1:9470";
    }
    return settings;
}

}  // namespace gpupool::cli
