"""Files of datasets: the protocol of storages, local disks, URLs, folders of caches."""
