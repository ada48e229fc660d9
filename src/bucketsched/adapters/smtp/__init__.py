"""Mail by aiosmtplib: a connection for each mail, safe before anything is said."""
