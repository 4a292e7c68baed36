// gpupool session: a running session's limits, and its end.
#include <memory>

#include "client/cli/administration_requests.h"

namespace gpupool::cli {

void add_session(CLI::App& app, Command& chosen) {
    auto* session = app.add_subcommand("session", "Show and change a running session's limits, or end it");
    session->require_subcommand(1);
    add_limit_commands(session, chosen, messages::LimitScope::Kind::session, "session");
    auto* command = session->add_subcommand("kill", "End a session");
    auto options = add_options(command, false);
    auto request = std::make_shared<messages::EndSession>();
    command->add_option("id", request->session, "The session, as `gpupool status` shows it")->required();
    command->add_option("--reason", request->reason, "A text for its user");
    command->callback([=, &chosen] { chosen = [=] { return send_request(*options, *request); }; });
}

}  // namespace gpupool::cli
