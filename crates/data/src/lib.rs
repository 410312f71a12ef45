//! Documents in, shards out; manifest, order, loader; the file containers.
