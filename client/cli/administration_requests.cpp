#include "client/cli/administration_requests.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "client/cli/administration.h"
#include "client/cli/administration_format.h"
#include "client/cli/settings.h"
#include "protocol/transport/endpoint.h"

namespace gpupool::cli {
namespace {

constexpr std::chrono::milliseconds kTimeout{10000};

using messages::LimitScope;

struct ScopeName {
    std::string name;
    bool all = false;  // all tenants
};

// The scope that a command line names; an error if it names none, or two.
Result<LimitScope> scope_of(LimitScope::Kind kind, const ScopeName& named) {
    if (named.all == !named.name.empty()) {
        return Error{ErrorCode::invalid_input, "name one tenant, or say --all for the limits of all tenants"};
    }
    return named.all ? LimitScope{} : LimitScope{kind, named.name};
}

void add_scope(CLI::App* command, ScopeName& named, LimitScope::Kind kind, const std::string& what) {
    auto* name = command->add_option("name", named.name, "The " + what);
    if (kind == LimitScope::Kind::tenant) {
        command->add_flag("--all", named.all, "All tenants");
    } else {
        name->required();
    }
}

int change(const AdministrationOptions& options, LimitScope::Kind kind, ScopeName named, std::vector<std::string> texts,
           bool set) {
    if (named.all && !named.name.empty()) {  // with --all the first word is no name
        texts.insert(texts.begin(), named.name);
        named.name.clear();
    }
    const auto scope = scope_of(kind, named);
    if (!scope || texts.empty()) {
        complain(scope ? "name at least one limit" : scope.error().message);
        return kExitUsage;
    }
    messages::ChangeLimits request{*scope, {}, {}};
    for (const std::string& text : texts) {
        if (!set) {
            request.unset.push_back(text);
            continue;
        }
        auto parsed = parse_change(text);
        if (!parsed) {
            complain(parsed.error().message);
            return kExitUsage;
        }
        request.set.push_back(std::move(*parsed));
    }
    return send_request(options, request);
}

}  // namespace

std::shared_ptr<AdministrationOptions> add_options(CLI::App* command, bool prints_table) {
    auto options = std::make_shared<AdministrationOptions>();
    command->add_option("--server", options->server,
                        fmt::format("HOST:PORT or unix:/PATH; default: GPUPOOL_SERVER, the configuration file, {}",
                                    transport::kDefaultAddress));
    if (prints_table) {
        command->add_flag("--json", options->json, "Print JSON; field names are stable");
    }
    return options;
}

int send_request(const AdministrationOptions& options, const messages::AdministrationRequest& request) {
    int exit_code = 0;
    const auto settings = settings_or_complain(options.server, exit_code);
    if (!settings) {
        return exit_code;
    }
    const auto answer = administer(settings->server, settings->token, request, kTimeout);
    if (!answer) {
        complain(answer.error().message);
        return kExitFailed;
    }
    if (const auto* made = std::get_if<messages::NewToken>(&*answer)) {
        // The token alone on stdout, so that `> file` keeps it.
        complain(fmt::format("token {} of {}: it is shown only now", made->id, made->name));
    }
    const std::string text = options.json ? answer_json(*answer) : answer_text(*answer);
    std::fputs(text.c_str(), stdout);
    return 0;
}

Result<messages::LimitText> parse_change(const std::string& text) {
    const std::size_t sign = text.find('=');
    if (sign == 0 || sign == std::string::npos || sign + 1 == text.size()) {
        return Error{ErrorCode::invalid_input, fmt::format("'{}' is not KEY=VALUE, like gpus=2", text)};
    }
    return messages::LimitText{text.substr(0, sign), text.substr(sign + 1), {}};
}

void add_limit_commands(CLI::App* parent, Command& chosen, LimitScope::Kind kind, const std::string& what) {
    {
        auto* show =
            parent->add_subcommand("show", fmt::format("Show the limits of a {}, and where each was set", what));
        auto options = add_options(show, true);
        auto named = std::make_shared<ScopeName>();
        add_scope(show, *named, kind, what);
        show->callback([=, &chosen] {
            chosen = [=] {
                const auto scope = scope_of(kind, *named);
                if (!scope) {
                    complain(scope.error().message);
                    return kExitUsage;
                }
                return send_request(*options, messages::ShowLimits{*scope});
            };
        });
    }
    for (const bool set : {true, false}) {
        auto* command = parent->add_subcommand(
            set ? "set" : "unset", set ? fmt::format("Change limits of a {} at once: gpus=2 memory=8GiB", what)
                                       : fmt::format("Forget changes of a {}'s limits, so that the file's hold", what));
        auto options = add_options(command, true);
        auto named = std::make_shared<ScopeName>();
        auto texts = std::make_shared<std::vector<std::string>>();
        add_scope(command, *named, kind, what);
        command->add_option("limits", *texts, set ? "KEY=VALUE, or several" : "KEY, or several");
        command->callback([=, &chosen] { chosen = [=] { return change(*options, kind, *named, *texts, set); }; });
    }
}

}  // namespace gpupool::cli
