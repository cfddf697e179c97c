"""The command line. Each command calls one public function and prints its report."""
