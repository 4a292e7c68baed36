#include "server/softgpu/graph/user_objects.h"

#include <utility>

#include "server/softgpu/graph/graph.h"

namespace gpupool::softgpu {

void UserObject::release(std::int64_t count) {
    if (references_.fetch_sub(count) != count) {
        return;
    }
    const bool before = std::exchange(in_host_function(), true);
    destructor_(object_);
    in_host_function() = before;
    graphs().user_objects.remove(this);
}

UserReferences::UserReferences(const UserReferences& other) : counts_(other.counts_) {
    for (const auto& [object, count] : counts_) {
        object->retain(count);
    }
}

UserReferences& UserReferences::operator=(const UserReferences& other) {
    UserReferences copy(other);
    std::swap(counts_, copy.counts_);
    return *this;
}

UserReferences::~UserReferences() {
    for (const auto& [object, count] : counts_) {
        object->release(count);
    }
}

void UserReferences::release(const std::shared_ptr<UserObject>& object, std::int64_t count) {
    if (const auto it = counts_.find(object); it != counts_.end() && (it->second -= count) <= 0) {
        counts_.erase(it);
    }
    object->release(count);
}

}  // namespace gpupool::softgpu
