#include "protocol/transport/shm/connector.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "protocol/transport/shm/arrival.h"
#include "protocol/transport/shm/connection.h"
#include "protocol/transport/shm/local_socket.h"

namespace gpupool::transport::shm {
namespace {

Result<std::unique_ptr<Connection>> begin(UniqueFd socket) {
    auto name = name_of_peer(socket.get());
    if (!name) {
        return name.error();
    }
    int room[2] = {-1, -1};
    int passage[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, room) != 0) {
        return system_error("socketpair", errno);
    }
    Parts parts;
    parts.socket = std::move(socket);
    parts.room.reset(room[0]);
    const UniqueFd their_room(room[1]);
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, passage) != 0) {
        return system_error("socketpair", errno);
    }
    parts.passage.reset(passage[0]);
    const UniqueFd their_passage(passage[1]);
    auto memory = SharedMemory::make("gpupool-connection", kMemoryBytes);
    if (!memory) {
        return memory.error();
    }
    parts.memory = std::move(*memory);
    const std::array descriptors = {their_room.get(), their_passage.get(), parts.memory.descriptor()};
    GPUPOOL_TRY(send_with_descriptors(parts.socket.get(), kGreeting, descriptors));
    return std::unique_ptr<Connection>(
        std::make_unique<ShmConnection>(std::move(parts), Side::client, std::move(*name)));
}

}  // namespace

Result<std::unique_ptr<Connection>> connect_to_path(const std::string& path) {
    const auto address = LocalAddress::of_path(path);
    if (!address) {
        return address.error();
    }
    auto socket = connect_socket(*address);
    if (!socket) {
        return socket.error().within(fmt::format("cannot connect to unix:{}", path));
    }
    return begin(std::move(*socket));
}

Result<std::unique_ptr<Connection>> connect_to_name(const std::string& name) {
    const auto address = LocalAddress::abstract(name);
    if (!address) {
        return address.error();
    }
    auto socket = connect_socket(*address);
    if (!socket) {
        return socket.error().within(fmt::format("no server listens at the local name {}", name));
    }
    const auto server = peer_of(socket->get());
    if (!server) {
        return server.error();
    }
    if (server->uid != 0 && server->uid != ::geteuid()) {
        return Error{ErrorCode::refused, fmt::format("the local name {} belongs to user {}, which is neither root nor "
                                                     "this process's user",
                                                     name, server->uid)};
    }
    return begin(std::move(*socket));
}

}  // namespace gpupool::transport::shm
