// Where code images of earlier sessions are kept: a folder for each tenant, ROOT/TENANT, with a file for each image.
//
// The daemon opens a tenant's folder and passes it to the tenant's workers. Each worker may run as a user of its own,
// so the folder and its files are open to all users; but no user except the daemon's can enter ROOT. So the descriptor
// of a tenant's folder is the only way into it, and no way into another's.
//
//   ROOT/TENANT/HASH    an image, named by the SHA-256 of its content (server/worker/images/image_store.h)
//   ROOT/TENANT/jit/    the driver's own cache of code that it has compiled
//
// The daemon keeps the images below a limit, for all tenants together. Above it, the least recently used images of the
// tenant that uses most are removed first (a file's modification time is that of its last use). A file counts with the
// disk space that it takes, at least kLeastFileBytes; and no tenant keeps more than kMaxFiles. The driver bounds its
// own cache for each tenant.
//
// Ownership: values. Threads: any; trim() of one folder one at a time in a process. Errors: open() says why it failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool {

class ImageFolders {
  public:
    static constexpr std::uint64_t kLeastFileBytes = 4096;
    static constexpr std::size_t kMaxFiles = 16u << 10;    // of a tenant
    static constexpr const char* kBeingWritten = ".new-";  // begins the names of files that are not complete

    // `root` must exist.
    explicit ImageFolders(std::string root) : root_(std::move(root)) {}

    // Makes the tenant's folder if it does not exist.
    [[nodiscard]] Result<UniqueFd> open(const std::string& tenant) const;

    // Removes images above the limits, and files of writers that died. Reads nothing if no image was added since the
    // last time.
    void trim(std::uint64_t limit_bytes);

  private:
    [[nodiscard]] bool has_changed(int root);

    std::string root_;
    std::map<std::string, std::int64_t> changed_ns_;  // when each tenant's folder had changed last
};

}  // namespace gpupool
